from abc import ABC, abstractmethod
from typing import Any


class BaseSandbox(ABC):
    @property
    @abstractmethod
    def id(self) -> str: ...

    @abstractmethod
    def execute(self, command: str, *, timeout: int | None = None) -> Any: ...

    @abstractmethod
    def upload_files(self, files: list[tuple[str, bytes]]) -> Any: ...

    @abstractmethod
    def download_files(self, paths: list[str]) -> Any: ...
