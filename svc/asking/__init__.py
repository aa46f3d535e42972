"""An offer, all from which a recipe is answered, and the plan that turns a request into a query."""
