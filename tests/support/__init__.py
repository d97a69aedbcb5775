"""What all tests share: private servers, a clock that is turned by hand, faults, and clients."""
