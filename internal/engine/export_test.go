package engine

// What the tests of this package look at.
var (
	MicroBatches = microBatches
	Viewed       = viewed
	GatherRows   = gatherRows
)

type MicroBatch = microBatch
