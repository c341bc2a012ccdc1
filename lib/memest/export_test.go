package memest

var InFlight = Layout.inFlight
