class Submitted(Exception):
    def __init__(self, *messages: dict[str, object]) -> None:
        super().__init__(*messages)
        self.messages = messages
