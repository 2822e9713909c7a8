"""Objects in a bucket under a common prefix: listing, reading, uploading, and creation unless they exist."""

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.storage.files import temporary_path

ADDRESS = re.compile(r"(s3|gs):/{1,2}([\w.-]+)/(.+?)/*")
RESUME = "finished results are kept; fix this and run the same command again to resume"
# Time limits in seconds. Requests that fail because of the server or the connection are retried for RETRY_S
# seconds.
RETRY_S, REQUEST_S, CONNECT_S = 60.0, 60.0, 5.0
_TRIES = 2
# Environment variables from which S3 credentials are read without boto3; boto3 also reads profiles.
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)


class Entry(NamedTuple):
    """Entry in a bucket listing.

    Attributes:
        size: size of the object in bytes.
        tag: text that changes with its content.
        modified: time of the last change, in seconds since 1970.
    """

    size: int
    tag: str
    modified: float


def is_address(location: str | Path) -> bool:
    """Return whether a location is a bucket URL, s3://BUCKET/NAME or gs://BUCKET/NAME.

    There may be one or two slashes after the colon.
    """
    return str(location).startswith(("s3:/", "gs:/"))


def address_text(location: str | Path) -> str:
    """Return a path or bucket URL as the user wrote it, restoring the slash that `pathlib` drops.

    Raises:
        InputError: the URL lacks a bucket or a name.
    """
    if not is_address(location):
        return str(location)
    found = ADDRESS.fullmatch(str(location))
    if found is None or {".", "..", ""} & set(found[3].split("/")):
        raise InputError(
            f"{location}: not the URL of a bucket folder; use s3://BUCKET/NAME or gs://BUCKET/NAME"
        )
    return f"{found[1]}://{found[2]}/{found[3]}"


class Objects:
    """Objects under a bucket URL, identified by names relative to the URL."""

    def __init__(self, location: str | Path) -> None:
        """Store the bucket URL without making a request.

        Raises:
            InputError: the URL is invalid, obstore is not installed, or boto3 finds no S3 credentials.
        """
        self.address = address_text(location)
        self._store = _open_store(self.address)

    def entries(self, folder: str | None = None) -> dict[str, Entry]:
        """Return the listing entries of all objects, or of those in a folder, by name."""
        with self._translate_errors(InputError, "read"):
            return {x["path"]: _entry(x) for page in self._store.list(folder) for x in page}

    def top(self) -> tuple[dict[str, Entry], list[str]]:
        """Return the listing entries of the top-level objects by name, and the top-level folder names."""
        with self._translate_errors(InputError, "read"):
            found = self._store.list_with_delimiter()
        return {x["path"]: _entry(x) for x in found["objects"]}, list(found["common_prefixes"])

    def read(self, name: str) -> bytes | None:
        """Read an object; return None if it does not exist."""
        with self._translate_errors(InputError, "read"):
            try:
                return bytes(self._store.get(name).bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def download(self, name: str, path: Path) -> None:
        """Download an object to a file, atomically. If the object does not exist, nothing is written."""
        try:
            try:
                self._download(name, path)
            except FileNotFoundError:  # Another process has renamed or deleted the folder.
                self._download(name, path)
        except InputError as error:
            if not isinstance(error.__context__, FileNotFoundError):
                raise
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{path}: cannot be written: {reason}; fix this and try again") from None

    def _download(self, name: str, path: Path) -> None:
        temporary = temporary_path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file, self._translate_errors(InputError, "read"):
                for part in self._store.get(name):
                    file.write(part)
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink()

    def upload(self, name: str, path: Path) -> None:
        """Upload a file to an object, replacing the object unconditionally."""
        with self._translate_errors(RunError, "written"):
            self._store.put(name, path)

    def create(self, name: str, content: bytes) -> bool:
        """Create an object unless it exists; return whether it has this content now.

        Raises:
            RunError: the object cannot be written.
        """
        left = _TRIES
        while True:
            left -= 1
            try:
                with self._translate_errors(RunError, "written"):
                    self._store.put(name, content, mode="create", use_multipart=False)
            except RunError as error:
                cause = error.__context__
                if _is_conflict(cause):
                    # This process may have written the object but not received the response.
                    return self._is(name, content)
                if not (_is_transient(cause) and left):
                    raise
            else:
                return True

    def _is(self, name: str, content: bytes) -> bool:
        try:
            return self.read(name) == content
        except InputError as error:
            raise RunError(f"{error}; {RESUME}") from None

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, ignoring names that do not exist."""
        wanted = list(names)
        with self._translate_errors(RunError, "written"), suppress(FileNotFoundError):
            if wanted:
                self._store.delete(wanted)

    @contextmanager
    def _translate_errors(self, kind: type[Exception], done: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            rest = f"; {RESUME}" if kind is RunError else ""
            raise kind(f"{self.address}: cannot be {done}: {_reason(error)}{rest}") from None


def _open_store(address: str) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise InputError(f"{address}: obstore is not installed; run pip install 'jaxattn[cloud]'") from None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    options: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=REQUEST_S),
            "connect_timeout": timedelta(seconds=CONNECT_S),
        },
        "retry_config": {
            "max_retries": 10,
            "retry_timeout": timedelta(seconds=RETRY_S),
            "backoff": {
                "init_backoff": timedelta(seconds=0.1),
                "max_backoff": timedelta(seconds=10),
                "base": 2,
            },
        },
    }
    if address.startswith("s3:"):
        if endpoint.startswith("http://"):
            options["client_options"]["allow_http"] = True
        if not any(os.environ.get(name) for name in CREDENTIALS) and importlib.util.find_spec("boto3"):
            options["credential_provider"] = _boto3_credentials(address)
    try:
        return from_url(address, **options)
    except (BaseError, ValueError, OSError) as error:
        raise InputError(f"{address}: {_reason(error)}") from None


def _boto3_credentials(address: str) -> Any:
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except (ValueError, BotoCoreError):
        raise InputError(f"{address}: {NO_CREDENTIALS}") from None


NO_CREDENTIALS = (
    "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (for Google: "
    "GOOGLE_APPLICATION_CREDENTIALS), or log in with the tools of your cloud"
)
# Explanations of server errors, by pattern in the response; the first match is used.
REASONS = (
    (r"NoSuchBucket|bucket does not exist", "no such bucket; create it, or choose another"),
    (
        r"ExpiredToken|TokenRefreshRequired|token[^.]{0,20}expired|Expired",
        "the credentials have expired; renew them",
    ),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken", "the credentials are rejected; use others"),
    (r"169\.254\.|metadata\.google|[Cc]redentials? (?:from|provider|was)|OAuth", NO_CREDENTIALS),
    (
        r"AccessDenied|403 Forbidden|401 Unauthorized|PermissionDenied",
        "access denied; use credentials with permission to list, read, write and delete",
    ),
    (
        r"PermanentRedirect|301 Moved|AuthorizationHeaderMalformed",
        "the bucket is in another region; set AWS_REGION",
    ),
    (r"NoSuchKey|404 Not Found", "the object no longer exists"),
    # Match the status code together with its text, because a port or a duration may contain the same digits.
    (
        r"NotImplemented|501 Not Implemented",
        "the server does not support conditional writes; use another one",
    ),
)


def _reason(error: BaseException) -> str:
    text = str(error)
    if found := re.search(r"invalid path: .*?[Pp]ath \"(.*?)\"", text, re.DOTALL):
        return f"the key {found[1]!r:.300} is not a valid path; delete that object and try again"
    for pattern, reason in REASONS:
        if re.search(pattern, text):
            return reason
    causes = re.findall(r"(?:Server returned|error sending request|operation timed out)[^<\n]*", text)
    cause = causes[-1] if causes else text.partition("\n")[0]
    return f"unexpected response from the server ({cause.strip(' :'):.120})"


def _is_conflict(error: BaseException | None) -> bool:
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    gone = isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error)
    return gone or isinstance(error, AlreadyExistsError | PreconditionError)


def _is_transient(error: BaseException | None) -> bool:
    return type(error).__name__ == "GenericError" and not any(
        re.search(pattern, str(error)) for pattern, _ in REASONS
    )


def _entry(found: Any) -> Entry:
    modified = found["last_modified"]
    return Entry(found["size"], f"{found['e_tag']} {modified}", modified.timestamp())
