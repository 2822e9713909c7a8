"""Settings classes for the synthetic corpora."""

from jaxattn.data.from_function import data_class
from jaxattn.data.interactions import negation, xor
from jaxattn.data.synthetic import assumption1, independent, multi_relevant, topics

Assumption1 = data_class(assumption1, name="Assumption1")
MultiRelevant = data_class(multi_relevant, name="MultiRelevant")
Independent = data_class(independent, name="Independent")
Topics = data_class(topics, name="Topics")
Xor = data_class(xor, name="Xor")
Negation = data_class(negation, name="Negation")
