"""What `make gpu-check` bundles and runs: checks of the trainer on a machine with a GPU, within ten minutes."""
