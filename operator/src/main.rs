//! Reconciles ViTTrainingJobs into gangs of pods on like GPUs

fn main() {}
