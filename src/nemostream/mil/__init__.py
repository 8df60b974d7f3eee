"""Runs CoreML programs without CoreML: a saved ``.mlpackage``, executed in numpy on any machine.

`read_program` reads the protobuf and its weight file; `Program` executes it operation by operation.
"""

from nemostream.mil.package import read_program
from nemostream.mil.program import Program, Signature

__all__ = ["Program", "Signature", "read_program"]
