"""The manifest of a job."""

from contenders import MODELS, PRECISIONS, Case


def manifest(name: str, case: Case, data: dict, **spec: dict) -> dict:
    """The manifest of a job that trains a case for an epoch, with additional fields of its spec."""
    training = {"epochs": 1, "microBatchSize": case.batch, "schedule": {"name": "constant"}} | PRECISIONS[case.precision]
    return {
        "apiVersion": "vit-operator.dev/v1alpha1",
        "kind": "ViTTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "image": "unused",
            "model": MODELS[case.model] | {"pooling": case.pooling},
            "data": data,
            "training": training,
            "workers": {"nodes": 1, "device": case.device},
            "checkpoint": {"volume": {"hostPath": {"path": "/unused"}}},
        } | spec,
    }
