"""Reasons of failed requests to a bucket, from the text of the error."""

import pytest

from jaxattn.lab.storage.objects import _reason

NO_WRITES = "the server does not support conditional writes; use another one"
TEXT = "Generic S3 error: Error performing PUT http://127.0.0.1:{port}/b/x in {elapsed}ms, 2 retries - {what}"


@pytest.mark.parametrize(
    "what",
    [
        "Server returned non-2xx status code: 501 Not Implemented: ",
        "<Error><Code>NotImplemented</Code></Error>",
    ],
)
def test_server_without_conditional_writes_is_reported(what):
    assert _reason(ValueError(TEXT.format(port=9000, elapsed="2.1", what=what))) == NO_WRITES


@pytest.mark.parametrize(("port", "elapsed"), [(35013, "12.7"), (9000, "310.501234"), (5501, "501")])
def test_port_and_duration_in_an_error_are_not_mistaken_for_status_codes(port, elapsed):
    error = ValueError(TEXT.format(port=port, elapsed=elapsed, what="HTTP error: error sending request"))
    assert _reason(error) == "unexpected response from the server (error sending request)"
