//! The ViTTrainingJob custom resource: types, schema, validation, and the run configuration a trainer gets from it
