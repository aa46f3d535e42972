from svc import errors as errors
from svc.library.comparison import Comparison as Comparison
from svc.library.comparison import compare as compare
from svc.library.evaluation import Evaluation as Evaluation
from svc.library.evaluation import evaluate as evaluate
from svc.library.experiment import Experiment as Experiment
from svc.library.experiment import experiment as experiment
from svc.library.recommender import Recommender as Recommender
from svc.library.recommender import load as load
from svc.library.training import TrainResult as TrainResult
from svc.library.training import train as train

__version__: str
DISTRIBUTION: str

def install_command(extra: str) -> str: ...
def lacks(owner: str, name: str) -> AttributeError: ...
