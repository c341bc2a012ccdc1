package rank

import "errors"

// ErrElsewhere is what an error wraps that a rank has because another has one of its own.
var ErrElsewhere = errors.New("it says why")
