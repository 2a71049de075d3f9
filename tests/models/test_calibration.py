"""Temperature, the score of unknown shapes, and their file beside the weights."""

import json

import pytest
import torch
from torch.nn import functional as F

import vector_neurons as vn
from vector_neurons.models import Calibration, Metadata, PointNet, store


def validation(overconfidence=3.0):
    """Logits whose softmax, before they were made too large, is the distribution of the labels."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 5, generator=generator) * 2
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return logits * overconfidence, labels


def saved(folder, calibration):
    store.save(PointNet(5, k=4, embedding=24), folder, Metadata(classes=list("abcde")), calibration)


def test_the_temperature_undoes_overconfidence():
    logits, labels = validation()
    calibration = Calibration.fit(logits, labels)
    assert calibration.temperature == pytest.approx(3, rel=0.05)
    after = F.nll_loss(calibration.probabilities(logits).log(), labels)
    assert after < F.cross_entropy(logits, labels) - 0.1


def test_known_is_uniform_on_validation_shapes_and_zero_on_weak_answers():
    logits, labels = validation()
    calibration = Calibration.fit(logits, labels)
    known = calibration.known(logits)
    for level in (0.05, 0.5, 0.9):
        assert (known < level).double().mean().item() == pytest.approx(level, abs=0.01)
    weak = torch.full((1, 5), logits.max(-1).values.min().item() - 1)
    assert calibration.known(weak).item() == 0
    assert calibration.known(logits.max().expand(1, 5) * torch.tensor([2.0, 0, 0, 0, 0])).item() == 1


def test_classes_have_their_own_scale():
    """A logit that is large for one class is small for another, whose shapes have larger ones."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    top = torch.where(labels == 0, 5.0, 20.0) + torch.randn(400, generator=generator)
    logits = F.one_hot(labels, 2) * top[:, None]
    calibration = Calibration.fit(logits, labels)
    first, second = calibration.known(torch.tensor([[8.0, 0], [0, 8.0]])).tolist()
    assert first > 0.9
    assert second == 0


def test_it_is_saved_beside_the_weights(tmp_path):
    calibration = Calibration.fit(*validation())
    saved(tmp_path, calibration)
    loaded = vn.load(tmp_path)
    assert [list(x) if isinstance(x, tuple) else x for x in vars(calibration).values()] == list(
        vars(loaded.calibration).values()
    )
    assert (tmp_path / store.CALIBRATION).stat().st_size < 200_000
    # Weights may have been trained since, so a calibration is saved only when it is given.
    store.save(loaded, tmp_path)
    assert not (tmp_path / store.CALIBRATION).exists()
    assert vn.load(tmp_path).calibration is None


def test_a_changed_or_foreign_calibration_is_refused(tmp_path):
    saved(tmp_path, Calibration.fit(*validation()))
    path = tmp_path / store.CALIBRATION
    path.write_text(path.read_text().replace("temperature", "temperature "))
    with pytest.raises(store.StoreError, match=r"calibration.json changed"):
        vn.load(tmp_path)
    saved(tmp_path, None)
    path.write_text("{}")
    with pytest.raises(store.StoreError, match=r"no checksum of calibration.json"):
        vn.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0},
        {"temperature": "1"},
        {"mean": [1.0]},
        {"std": [0.0] * 5},
        {"quantiles": [1.0, 0.0]},
        {"quantiles": [float("nan")] * 101},
        {"more": 1},
    ],
)
def test_a_calibration_that_does_not_fit_is_refused_in_one_line(tmp_path, change):
    saved(tmp_path, Calibration.fit(*validation()))
    path = tmp_path / store.CALIBRATION
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    vn._files.write_checksums(tmp_path, [store.WEIGHTS, store.CONFIG, store.CALIBRATION])
    with pytest.raises(store.StoreError, match=r"calibration.json is not a calibration") as caught:
        vn.load(tmp_path)
    assert "\n" not in str(caught.value)
