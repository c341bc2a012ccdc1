package group

import "fmt"

// Failure is the error that ended a group. Every rank gets it from the call that failed and from all later calls.
type Failure struct {
	Group  string // the sub-group that failed; "" for a group that was not split off
	Rank   int    // the rank at fault, by its number in that group
	Kind   Kind   // the operation that failed
	Seq    uint64 // its number, from 1: of the group's collectives, or of the sends from one rank to another
	Reason string // what the rank did: "did not arrive within 2s"
	Err    error  // the cause, if there is one: context.DeadlineExceeded, the rank's own error
}

// Error says for example "all-reduce #12: rank 3 did not arrive within 2s (its last call was barrier #11)".
func (f *Failure) Error() string {
	of := ""
	if f.Group != "" {
		of = " of " + f.Group
	}
	return fmt.Sprintf("%v #%d%s: rank %d %s", f.Kind, f.Seq, of, f.Rank, f.Reason)
}

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }
