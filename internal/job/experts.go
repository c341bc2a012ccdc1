package job

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/gpt"
)

// Experts returns the experts of a command without flags: none, with the coefficients that [CompleteModel] sets.
func Experts() expert.Config { return expert.Config{Balance: unset, BiasRate: unset} }

// unset is the value of a [coefficient] that was not given.
const unset = -1

// coefficient is a number of at least 0, whose default depends on other settings.
type coefficient struct{ of *float64 }

// Set implements [pflag.Value].
func (c coefficient) Set(text string) error {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= 0) {
		return fmt.Errorf("want a number of at least 0")
	}
	*c.of = x
	return nil
}

// String implements [pflag.Value].
func (c coefficient) String() string {
	if c.of == nil || *c.of < 0 {
		return ""
	}
	return strconv.FormatFloat(*c.of, 'g', -1, 64)
}

// Type implements [pflag.Value].
func (c coefficient) Type() string { return "float64" }

// expertFlags adds the flags of a mixture of experts.
func expertFlags(f *pflag.FlagSet, m *gpt.Config) {
	add, e := flags.Adder(f), &m.Experts
	add(&e.Experts, "experts", "mixture of experts: number of experts of each block, in place of its MLP")
	add(&e.PerToken, "experts-per-token", "experts that each token is sent to (default 2)")
	add(&e.Hidden, "expert-hidden", "width of an expert (default that of the MLP)")
	add(&m.SharedExperts, "shared-experts", "experts of each block that all tokens go through")
	add(&m.DenseLayers, "dense-layers", "first blocks that keep the MLP")
	flags.Choice(f, &e.Router, "router", []expert.Router{expert.Softmax, expert.Sigmoid},
		fmt.Sprintf("scores of experts: %s|%s, with a balancing bias (default %[1]s)", expert.Softmax, expert.Sigmoid))
	add(&e.Capacity, "capacity", "drop tokens beyond this multiple of an expert's mean load; 0 drops none")
	add(coefficient{&e.Balance}, "balance",
		"coefficient of the load-balancing loss (default 0.01 with softmax, else 0)")
	add(&e.ZLoss, "z-loss", "coefficient of the loss that keeps the router's logits small")
	add(coefficient{&e.BiasRate}, "bias-rate", "change of the sigmoid router's bias in a step (default 0.001)")
	add(&m.QKNorm, "qk-norm", "normalize queries and keys of each head (RMSNorm)")
	flags.Least(f, "0", "experts", "experts-per-token", "expert-hidden", "shared-experts", "dense-layers", "capacity",
		"z-loss")
	flags.Needs(f, "experts", "experts-per-token", "expert-hidden", "shared-experts", "dense-layers", "router",
		"capacity", "balance", "z-loss", "bias-rate")
}

// CompleteModel sets what the flags of a model leave to the others. Of several experts a token's weights are
// normalized, as in Mixtral.
func CompleteModel(m *gpt.Config) {
	e := &m.Experts
	balance, rate := 0., 0.
	if e.Experts > 0 {
		e.PerToken = cmp.Or(e.PerToken, min(2, e.Experts))
		e.Hidden = cmp.Or(e.Hidden, m.Hidden, 4*m.Width)
		e.Normalize = e.PerToken > 1
		if e.Router = cmp.Or(e.Router, expert.Softmax); e.Router == expert.Softmax {
			balance = 0.01
		} else {
			rate = 0.001
		}
	}
	if e.Balance < 0 {
		e.Balance = balance
	}
	if e.BiasRate < 0 {
		e.BiasRate = rate
	}
}
