"""Tests against foreign libraries. The library itself imports none of them."""
