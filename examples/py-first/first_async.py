"""`first.py` with asyncio: the same names, with `await`. Several commands can be on their way at once."""

import asyncio

from trl_client import Completed, Stderr, Stdout, aio

SERVER = """
python3 -c 'import time; time.sleep(600)' &
python3 -c 'import time; time.sleep(600)' &
echo starting
exec python3 -u -m http.server --bind 127.0.0.1 0
"""  # two workers and a server


async def main() -> None:
    async with aio.connect() as sandbox:
        result = await sandbox.exec("printf hello; printf oops >&2; exit 3")
        print(result.stdout, result.stderr, result.exit_code)

        server = await sandbox.start_process(["sh", "-c", SERVER])
        port = int((await server.wait_for_log(r" port (\d+)", timeout=60)).match[1])
        await server.wait_for_port(port, timeout=60)
        async for log in server.stream_logs():
            if isinstance(log, (Stdout, Stderr)):
                print(log.data.splitlines()[0])
            break
        await server.kill()  # and both workers
        print("server:", server.status)

        async with sandbox.create_session(cwd="/tmp", env={"MODE": "x"}) as session:
            await session.exec("export API_KEY=secret")
            show = "import os; print(os.environ['API_KEY'], os.environ['MODE'], os.getcwd())"
            print((await session.exec(["python3", "-c", show])).stdout, end="")

            # A session runs one command after the other, in the order of the calls.
            first, second = await asyncio.gather(session.exec("sleep 0.2; echo first"), session.exec("echo second"))
            print(first.stdout + second.stdout, end="")

            async for event in session.exec_stream("for i in 1 2 3; do echo $i; sleep 0.1; done"):
                match event:
                    case Stdout(text):
                        print("stdout:", text.strip())
                    case Completed(result):
                        print("complete:", result.exit_code)

            try:
                async with asyncio.timeout(0.2):
                    await session.exec("sleep 600")
            except TimeoutError:  # the command has been ended, and the session is free
                print((await session.info())["state"])


asyncio.run(main())
