package memest

var InFlight = Parallelism.inFlight
