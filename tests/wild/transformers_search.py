"""Trainer.hyperparameter_search(backend="ray") of transformers: 3 trials, ASHA, checkpoints."""

import muster.as_ray  # first: what follows imports ray

import os
import sys
import tempfile

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


def rows(count):
    for number in range(count):
        label = number % 2
        yield {"input_ids": torch.full((8,), 5 + 20 * label + number % 7), "labels": torch.tensor(label)}


def model_init(*_):
    set_seed(1)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=16,
        )
    )


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    trainer = Trainer(
        model_init=model_init,
        args=TrainingArguments(
            output_dir=os.path.join(folder, "out"),
            num_train_epochs=2,
            eval_strategy="epoch",
            save_strategy="epoch",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=list(rows(64)),
        eval_dataset=list(rows(32)),
    )
    best = trainer.hyperparameter_search(
        direction="minimize",
        backend="ray",
        n_trials=3,
        search_alg=BasicVariantGenerator(random_state=1),
        hp_space=lambda _: {"learning_rate": tune.loguniform(1e-5, 1e-2)},
        scheduler=ASHAScheduler(
            metric="objective", mode="min", time_attr="training_iteration", grace_period=1
        ),
        storage_path=folder,
        name="search",
        verbose=0,
    )
    print("RESULT", best.hyperparameters)
