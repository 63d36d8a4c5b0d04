"""Robots: joints, bodies, and the frozen tensors of a `Mechanism`; nothing here knows operators."""
