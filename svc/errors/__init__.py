"""Every error that svc raises on purpose, with its codes as plain values.

SvcError
├─ UsageError               2  wrong use of the command line or a Python function
├─ RecipeError              2  the recipe cannot be used
│  ├─ RecipeUnreadable         ... because its file could not be read this time
│  ├─ RefitRefused             ... with --refit: the live artifact comes from another recipe
│  └─ RecipeSecurityError      ... for security: traversal, scheme, embedded credentials
├─ DataSourceError          3  data could not be fetched
│  └─ SourceTooLarge           ... a byte or row cap was reached
├─ FetchError               3  an http(s) exchange failed; callers raise an error of their own from it
│  └─ FetchForbidden, FetchStatus, FetchTimedOut, FetchTooLarge
├─ TrainingError            4  data or search cannot give a model
│  ├─ MinDataViolation  ├─ ZeroScore  ├─ FeatureAxisError  ├─ FeatureTableError
│  ├─ TimeUnitRequired  ├─ TimeMixture  ├─ CutoffTooLarge  ├─ FeatureDimensionExceeded
│  └─ FeatureRidgeFailed, DataChangedTooMuch, WeightOutOfRange, RowFilterMismatch,
│     ModelNotServable
├─ ArtifactError            5  an artifact cannot be read, trusted or used
│  ├─ ArtifactReadError, NoSuchVersion, MetadataError                                   stage "read"
│  ├─ MagicMismatch, UnsupportedFormat, HeaderTooLarge, HeaderInvalid, PayloadTooLarge,  stage "parse"
│  │  ArtifactMisplaced, ArtifactReplayed, ArtifactExpired
│  ├─ UnknownKid, SignatureMismatch                                                     stage "hmac"
│  └─ ForbiddenClass, PayloadInvalid, VersionSkew, FeatureVersionMismatch,              stage "deserialize"
│     FeatureStateMismatch, RehearsalFailed
├─ ArtifactWriteError       5  an artifact or an export could not be written
├─ ExportIncomplete         5  parts of an export are missing or do not belong together
│  └─ ExportDamaged            ... a part is not what its manifest describes
├─ LockContestedError       6  another run holds the lock
├─ ConfigError              8  the environment or the machine is set up wrongly
│  ├─ StoragePathUnusable      training.storage_path
│  └─ ResourcesExhausted       no more memory, threads or open files
└─ ApiError                    an HTTP answer other than 200; some are raised by svc.Recommender and exports too

`commands` has the families with an exit code, `http` those with an HTTP status. Import all of them from here.
Handlers decide by `code`, `exit_code`, `reason`, `stage` and `http_status`, never by the message text.
"""

from __future__ import annotations

from svc.errors.commands import *
from svc.errors.http import *
