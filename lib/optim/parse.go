package optim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Names lists the names that [Parse] knows, in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(byName())) }

// Parse returns the optimizer with a name, in upper or lower case, a learning rate and its default settings. It returns
// an error for an unknown name or an invalid learning rate. "adafactor" takes 0 for its own rate.
func Parse(name string, lr float64) (Optimizer, error) {
	of, ok := byName()[strings.ToLower(name)]
	if !ok {
		return nil, fmt.Errorf("optim: there is no optimizer %q: choose one of %q", name, Names())
	}
	o := of(lr)
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return o, nil
}

func byName() map[string]func(lr float64) Optimizer {
	return map[string]func(lr float64) Optimizer{
		"sgd":       func(lr float64) Optimizer { return SGD(lr) },
		"momentum":  func(lr float64) Optimizer { return SGDOptimizer{LR: lr, Momentum: 0.9} },
		"nesterov":  func(lr float64) Optimizer { return SGDOptimizer{LR: lr, Momentum: 0.9, Nesterov: true} },
		"adam":      func(lr float64) Optimizer { return Adam(lr) },
		"adamw":     func(lr float64) Optimizer { return AdamW(lr) },
		"adam8bit":  func(lr float64) Optimizer { return Adam8bit(lr) },
		"adafactor": func(lr float64) Optimizer { return Adafactor(lr) },
		"lion":      func(lr float64) Optimizer { return Lion(lr) },
		"lamb":      func(lr float64) Optimizer { return LAMB(lr) },
	}
}
