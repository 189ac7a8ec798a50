"""Ray 1.2: searchers of tune.suggest by name and with spaces of their own, generators of variants."""

import numpy as np
from hyperopt import hp
from ray import tune
from ray.tune.schedulers import create_scheduler
from ray.tune.schedulers.pb2 import PB2
from ray.tune.suggest import SearchAlgorithm, create_searcher
from ray.tune.suggest.basic_variant import BasicVariantGenerator
from ray.tune.suggest.hyperopt import HyperOptSearch
from ray.tune.suggest.repeater import Repeater
from ray.tune.suggest.variant_generator import generate_variants, grid_search
from ray.tune.suggest import search_generator


def evaluate(config):
    tune.report(mean_loss=(config["width"] - 3) ** 2, neg_mean_loss=-((config["width"] - 3) ** 2))


variants = list(generate_variants({"a": grid_search([1, 2]), "b": 3}))
assert len(variants) == 2
space = {"width": hp.uniform("width", 0, 20), "activation": hp.choice("activation", ["relu", "tanh"])}
algo = HyperOptSearch(
    space,
    max_concurrent=2,
    metric="mean_loss",
    mode="min",
    points_to_evaluate=[{"width": 1, "activation": 0}],
)
analysis = tune.run(evaluate, search_alg=algo, num_samples=3, metric="mean_loss", mode="min", verbose=0)
assert len(analysis.trials) == 3
algo = BasicVariantGenerator(random_state=np.random.RandomState(seed=4))
analysis = tune.run(evaluate, search_alg=algo, num_samples=2, config={"width": tune.uniform(0, 9)}, verbose=0)
assert len(analysis.trials) == 2
searcher = create_searcher("hyperopt", metric="mean_loss", mode="min")
scheduler = create_scheduler("async_hyperband", metric="mean_loss", mode="min", max_t=3)
again = Repeater(searcher, repeat=2)
analysis = tune.run(
    evaluate, search_alg=again, num_samples=4, config={"width": tune.uniform(0, 9)}, verbose=0
)
assert len(analysis.trials) == 4
analysis = tune.run(
    evaluate, scheduler=scheduler, num_samples=1, config={"width": tune.randn(1, 2)}, verbose=0
)
