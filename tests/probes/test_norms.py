import numpy as np

from jaxattn import models
from jaxattn.probes import Norms


def test_norms_of_all_parameters_trained_or_not(x64, corpus, show, draw):
    corpus, model = corpus(3), models.Mlp(dim=5)
    params = draw(model, corpus)
    found = Norms().measure(show(model, params, corpus, train=("p",)))
    assert set(found) == {"norm_E", "norm_p", "norm_v", "norm_W", "norm_b"}
    for name, value in vars(params).items():
        np.testing.assert_allclose(found[f"norm_{name}"], np.sqrt(np.sum(np.asarray(value) ** 2)), rtol=1e-13)
