"""mini-swe-agent: an environment whose commands run in a session of a gateway.

    environment_class: trl_client.integrations.mini_swe_agent.TrlEnvironment"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from minisweagent.exceptions import Submitted

from .. import _sync
from ..errors import TrlError
from . import _files

_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass
class TrlEnvironmentConfig:
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    timeout: int = 30
    url: str | None = None  # none: TRL_URL, or the gateway of this machine
    unix: str | None = None


class TrlEnvironment:
    """The session ends with `cleanup`, or with the program."""

    def __init__(self, *, token: str | None = None, **config: Any) -> None:
        self.config = TrlEnvironmentConfig(**config)
        self._client = _sync.connect(self.config.url, unix=self.config.unix, token=token)
        try:
            self._session = self._client.create_session(cwd=self.config.cwd or None, on_disconnect="destroy")
        except BaseException:
            self._client.close()
            raise

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        merged = _files.Merged()
        try:
            result = self._session.exec(
                action.get("command", ""),
                cwd=cwd or self.config.cwd or None,
                env=self.config.env,
                timeout=timeout or self.config.timeout,
                on_stdout=merged.add,
                on_stderr=merged.add,
            )
            if result.timed_out:
                raise TimeoutError(f"the command was ended after {timeout or self.config.timeout} s")
        except (TrlError, TimeoutError) as e:
            return {
                "output": merged.text,
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {e}",
                "extra": {"exception_type": type(e).__name__, "exception": str(e)},
            }
        output = {"output": merged.text, "returncode": result.exit_code, "exception_info": ""}
        self._check_finished(output)
        return output

    def _check_finished(self, output: dict[str, Any]) -> None:
        first, *rest = output["output"].lstrip().splitlines(keepends=True) or [""]
        if first.strip() == _DONE and output["returncode"] == 0:
            submission = "".join(rest)
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """What prompts may mention: the settings, and the machine of the session."""
        names = ("system", "node", "release", "version", "machine")
        values = self._session.exec("for f in s n r v m; do uname -$f; done").stdout.splitlines()
        return asdict(self.config) | dict(zip(names, values)) | kwargs

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": asdict(self.config), "environment_type": kind}}}

    def cleanup(self) -> None:
        self._client.close()
