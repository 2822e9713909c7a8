"""Settings classes for the synthetic corpora."""

from jaxattn.base import DrawnData
from jaxattn.data.interactions import negation, xor
from jaxattn.data.of_function import data_class
from jaxattn.data.synthetic import assumption1, independent, multi_relevant, topics

Assumption1 = data_class(assumption1, name="Assumption1")
MultiRelevant = data_class(multi_relevant, name="MultiRelevant")
Independent = data_class(independent, name="Independent")
Topics = data_class(topics, name="Topics")
Xor = data_class(xor, name="Xor")
Negation = data_class(negation, name="Negation")

GENERATORS: dict[str, type[DrawnData]] = {
    "assumption1": Assumption1,
    "multi_relevant": MultiRelevant,
    "independent": Independent,
    "topics": Topics,
    "xor": Xor,
    "negation": Negation,
}
