"""Mistakes that `mypy --strict` must find: each marked line has an error. Not run."""

import trl_client


def mistakes(sandbox: trl_client.Sandbox) -> None:
    sandbox.exec(17)  # wrong: a command is text or a sequence of texts
    sandbox.exec("true", timeout="soon")  # wrong: seconds
    sandbox.exec("true", no_such_option=True)  # wrong
    print(sandbox.exec("true").no_such_field)  # wrong
    sandbox.create_session(if_exists="maybe")  # wrong: error or return
    sandbox.get_process("p-1").kill()  # wrong: it may be None
