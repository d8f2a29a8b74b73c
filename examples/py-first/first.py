"""The first steps: a command, a server, a session that keeps its state, output as it comes. `first_async.py` is the same with asyncio."""

import trl_client
from trl_client import Completed, Stderr, Stdout

SERVER = """
python3 -c 'import time; time.sleep(600)' &
python3 -c 'import time; time.sleep(600)' &
echo starting
exec python3 -u -m http.server --bind 127.0.0.1 0
"""  # two workers and a server


def main() -> None:
    with trl_client.connect() as sandbox:
        result = sandbox.exec("printf hello; printf oops >&2; exit 3")
        print(result.stdout, result.stderr, result.exit_code)

        server = sandbox.start_process(["sh", "-c", SERVER])
        port = int(server.wait_for_log(r" port (\d+)", timeout=60).match[1])
        server.wait_for_port(port, timeout=60)
        for log in server.stream_logs():
            if isinstance(log, (Stdout, Stderr)):
                print(log.data.splitlines()[0])
            break
        server.kill()  # and both workers
        print("server:", server.status)

        with sandbox.create_session(cwd="/tmp", env={"MODE": "x"}) as session:
            session.exec("export API_KEY=secret")
            show = "import os; print(os.environ['API_KEY'], os.environ['MODE'], os.getcwd())"
            print(session.exec(["python3", "-c", show]).stdout, end="")

            for event in session.exec_stream("for i in 1 2 3; do echo $i; sleep 0.1; done"):
                match event:
                    case Stdout(text):
                        print("stdout:", text.strip())
                    case Completed(result):
                        print("complete:", result.exit_code)


main()
