"""The checks that `make gpu-check` bundles and runs: the trainer on a machine with a GPU, within ten minutes."""
