package cost

import (
	"fmt"
	"math"
)

// quantity is an argument with its name for errors.
type quantity struct {
	name  string
	value float64
}

// positive returns an error that names the first quantity that is not positive and finite.
func positive(quantities ...quantity) error {
	for _, q := range quantities {
		if !(q.value > 0) || math.IsInf(q.value, 1) {
			return fmt.Errorf("cost: %s is %v: give a positive number", q.name, q.value)
		}
	}
	return nil
}

// notNegative returns an error that names the quantity unless it is at least 0 and finite.
func notNegative(q quantity) error {
	if !(q.value >= 0) || math.IsInf(q.value, 1) {
		return fmt.Errorf("cost: %s is %v: give at least 0", q.name, q.value)
	}
	return nil
}
