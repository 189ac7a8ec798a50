#!/bin/sh
# Run libraries that call Ray Tune, each in an environment of its own, with Ray absent: tests/wild/run.sh [NAME...]
# Needs uv and downloads; an environment is made once, below build/wild. Prints a line per library.
# RAY=VERSION: the same script on that Ray instead, without muster; configurations.py prints what both sampled.
# A torch without CUDA: UV_FIND_LINKS=FOLDER WILD_OVERRIDE=torch==VERSION+cpu, where FOLDER holds its wheel.
cd "$(dirname "$0")/../.." || exit 1
ROOT=$PWD
mkdir -p build/wild
absent="ray; python_version < '3'"
printf "%s\n" "${RAY:+ray[tune,train]==$RAY}" $WILD_OVERRIDE > build/wild/override.txt
[ -n "$RAY" ] || echo "$absent" >> build/wild/override.txt
failed=0

run() {
  name=$1 script=$2
  shift 2
  [ -z "$NAMES" ] || echo " $NAMES " | grep -q " $name " || return 0
  env=build/wild/$name${RAY:+-ray-$RAY}
  if [ ! -e "$env/.installed" ]; then
    uv venv -q --clear --python "${PYTHON:-3.11}" "$env" &&
      uv pip install -q --python "$env/bin/python" --override build/wild/override.txt "$@" ${RAY:+"ray[tune,train]==$RAY"} &&
      touch "$env/.installed" || { echo "$name: could not be installed"; failed=1; return 0; }
  fi
  path=$ROOT/tests/wild/seeded
  if [ -n "$RAY" ]; then
    path=$path:$ROOT/tests/wild/on_ray
  else
    uv pip install -q --python "$env/bin/python" "$ROOT"
  fi
  folder=$(mktemp -d)
  if (cd "$folder" && HOME=$folder PYTHONPATH=$path timeout "${WILD_S:-900}" "$ROOT/$env/bin/python" "$ROOT/tests/wild/$script" "$folder") > "$env.log" 2>&1; then
    echo "$name: passed; $(grep RESULT "$env.log" | tail -1)"
  else
    echo "$name: FAILED; see $env.log"
    failed=1
  fi
  "$env/bin/python" tests/wild/configurations.py "$folder" >> "$env.log"
  rm -rf "$folder"
}

NAMES=$*
run transformers transformers_search.py transformers accelerate torch
run neuralforecast neuralforecast_auto.py neuralforecast torch
run lenskit lenskit_tune.py lenskit optuna torch
run autogluon autogluon_tabular.py autogluon.tabular lightgbm torch
run chemprop chemprop_hpopt.py chemprop torch
run dmg dmg_trainable.py dmg
run hopwise hopwise_tune.py hopwise hyperopt
run lightray lightray_cli.py lightray torch
run scvi scvi_autotune.py "scvi-tools[autotune]" torch
run ultralytics ultralytics_tune.py ultralytics optuna torch torchvision
exit $failed
