"""Exact certificates of max-margin directions for the tokens selected at the end of a phase."""

from pathlib import Path
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxattn.base import Model
from jaxattn.base.model import HasLinearScores, Params
from jaxattn.core.errors import InputError, writing
from jaxattn.core.scales import ERROR, YES_NO, Scale
from jaxattn.core.settings import FilePath, NotNegative, Static
from jaxattn.data.splits import Loaded
from jaxattn.lab.probes.directions import MaxMarginDirection
from jaxattn.lab.probes.selection import attended
from jaxattn.theory import Scores, certify_exactly, max_margin
from jaxattn.theory.check_certificate import check
from jaxattn.theory.exact_certificate import save_certificate


class ExactGap(MaxMarginDirection, frozen=True, kw_only=True):
    """Duality gap of the max-margin direction, proven in exact arithmetic and checked independently.

    The keys are those used in the phase. If the model uses span coordinates, the keys do too. The metrics are
    NaN for a seed without a certificate; see `ja.theory.certify_exactly`.

    Attributes:
        nats: see `max_margin_direction`.
        folder: folder for the certificates; each file is named after the SHA-256 of its data. By default,
            certificates are not saved.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "proven_gap": "proven relative duality gap",
        "accepted": "certificate accepted by the independent checker",
    }
    scales: ClassVar[dict[str, Scale]] = {"proven_gap": ERROR, "accepted": YES_NO}
    metrics: ClassVar[tuple[str, ...]] = ("proven_gap", "accepted")

    nats: Static[NotNegative] | None = None
    folder: FilePath | None = None

    def conclude(
        self, history: np.ndarray, params: Params, model: Model[Any], loaded: Loaded
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Certify each seed's max-margin direction for the tokens selected at the end of the phase.

        The certificates are verified by the independent checker.
        """
        params, data = jax.device_get((params, loaded.splits.train))
        found = np.full((2, len(history)), np.nan)
        for seed, path in enumerate(history):
            own = jax.tree.map(lambda x, seed=seed: np.asarray(x[seed]), params)
            bags = data if loaded.shared else jax.tree.map(lambda x, seed=seed: x[seed], data)
            with jax.enable_x64(True):
                found[:, seed] = self._certify(path[-1], cast(HasLinearScores, model).scores(own, bags))
        return {}, dict(zip(self.metrics, found, strict=True))

    def _certify(self, p: np.ndarray, scores: Any) -> tuple[float, float]:
        keys = np.asarray(scores.keys, np.float64)
        if not (np.isfinite(p).all() and np.isfinite(keys).all()):
            return np.nan, np.nan
        problem = Scores(keys, scores.corpus)
        chosen = attended(jnp.asarray(keys @ p), scores.corpus, self.nats)
        try:
            certificate = certify_exactly(problem, chosen, max_margin(problem, chosen))
        except InputError:
            return np.nan, np.nan
        if self.folder is not None:
            path = Path(self.folder) / f"{certificate.claim['sha256'][:16]}.json"
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            save_certificate(path, certificate)
        try:
            check(certificate.claim, certificate.data)
        except ValueError:
            return certificate.gap, 0.0
        return certificate.gap, 1.0
