"""Judge models by held-out interactions: rankings, metrics, intervals, folds, and the live model beside."""
