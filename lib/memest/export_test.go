package memest

// InFlight is what a device of a pipeline holds at once, in micro-batches.
var InFlight = Layout.inFlight
