// Package expert implements mixtures of experts: of E MLPs, the experts, each token is computed by k that a router
// chooses for it (Shazeer et al. 2017, "Outrageously Large Neural Networks", arXiv:1701.06538).
//
// A [Config] describes the layer: its experts, its router, what keeps the experts balanced. [Layer] adds it to a graph,
// for the tokens of one device. With expert parallelism (Lepikhin et al. 2020, "GShard", arXiv:2006.16668) each of N
// devices has E/N experts: an all-to-all sends each token to the devices of its experts, and another one sends the
// results back. [Grouped] is the matmul of rows by their experts' matrices.
//
// The functions build graphs, and panic on invalid arguments.
package expert

import (
	"fmt"
	"math"
	"strings"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/params"
)

// Router is how scores of experts are made of the router's logits x·w.
type Router string

const (
	// Softmax has the scores of a softmax over all experts: that of Switch (Fedus et al. 2021, arXiv:2101.03961) and
	// Mixtral (Jiang et al. 2024, arXiv:2401.04088).
	Softmax Router = "softmax"
	// Sigmoid has a sigmoid's. A bias for each expert, which is added for the choice alone, keeps the experts balanced:
	// each step raises it by [Config.BiasRate] for an expert with less than the mean load, and lowers it for one with
	// more (DeepSeek-V3, 2024, arXiv:2412.19437, §2.1.2).
	Sigmoid Router = "sigmoid"
)

// Config describes a layer, as plain data.
type Config struct {
	Experts  int    `json:"experts"`          // E, without those that all tokens share
	PerToken int    `json:"per_token"`        // k, the experts of a token
	Hidden   int    `json:"hidden"`           // H, the width of an expert
	Router   Router `json:"router,omitempty"` // none is Softmax

	// Normalize divides a token's k weights by their sum, as Mixtral and DeepSeek-V3 do, and Switch and OLMoE do not.
	Normalize bool `json:"normalize,omitempty"`
	// Scale multiplies the weights; 0 is 1. It is DeepSeek-V3's routed_scaling_factor.
	Scale float64 `json:"scale,omitempty"`

	// Groups is the number of equal groups of consecutive experts, of which a token may use GroupsPerToken: those with
	// the largest sums of their two best scores, with the bias (DeepSeek-V3's node-limited routing). 0 is no limit.
	Groups         int `json:"groups,omitempty"`
	GroupsPerToken int `json:"groups_per_token,omitempty"`

	// Capacity is the capacity factor: of a sequence of T tokens an expert takes at most ⌈Capacity·k·T/E⌉. It takes all
	// tokens' first choices before second ones, and each in the order of the tokens (GShard, Algorithm 1; Switch). The
	// rest is dropped: the expert contributes nothing to these tokens. 0 is no limit, and no token is dropped.
	Capacity float64 `json:"capacity,omitempty"`

	// Balance is α, the coefficient of the load-balancing loss α·Σ fₑ·Pₑ: fₑ is E/k times the share of a sequence's
	// tokens that chose expert e, before any is dropped, and Pₑ the mean of its score, divided by the sum of the
	// token's scores (Switch, eqs. 4 to 6). Like DeepSeek-V3's (eqs. 17 to 20) it is that of each sequence, so that it
	// does not depend on which sequences a device has.
	Balance float64 `json:"balance,omitempty"`
	// ZLoss is the coefficient of the router's z-loss, the mean of the squares of the logits' log-sum-exp (Zoph et al.
	// 2022, "ST-MoE", arXiv:2202.08906, eq. 5).
	ZLoss float64 `json:"z_loss,omitempty"`
	// BiasRate is γ, by which a step changes the bias of a Sigmoid router. DeepSeek-V3 used 0.001, and 0 at the end.
	BiasRate float64 `json:"bias_rate,omitempty"`
}

// Validate returns an error that names the first invalid setting.
func (c Config) Validate() error {
	for _, s := range []struct {
		name  string
		value int
	}{{"Experts", c.Experts}, {"PerToken", c.PerToken}, {"Hidden", c.Hidden}} {
		if s.value < 1 {
			return fmt.Errorf("expert: Config.%s is %d: set it to at least 1", s.name, s.value)
		}
	}
	for _, s := range []struct {
		name  string
		value float64
	}{{"Scale", c.Scale}, {"Capacity", c.Capacity}, {"Balance", c.Balance}, {"ZLoss", c.ZLoss}, {"BiasRate", c.BiasRate}} {
		if !(s.value >= 0) || math.IsInf(s.value, 0) {
			return fmt.Errorf("expert: Config.%s is %g: set it to a number from 0 on", s.name, s.value)
		}
	}
	switch {
	case c.PerToken > c.Experts:
		return fmt.Errorf("expert: Config.PerToken is %d of %d experts: set it to at most that", c.PerToken, c.Experts)
	case c.Router != "" && c.Router != Softmax && c.Router != Sigmoid:
		return fmt.Errorf("expert: Config.Router is %q: set it to %q or %q", c.Router, Softmax, Sigmoid)
	case c.BiasRate != 0 && c.Router != Sigmoid:
		return fmt.Errorf("expert: Config.BiasRate is %g, but a softmax router has no bias: set it to 0", c.BiasRate)
	case c.Groups == 0 && c.GroupsPerToken == 0:
		return nil
	case c.Groups < 1 || c.Experts%c.Groups != 0:
		return fmt.Errorf("expert: Config.Groups is %d: set it to a divisor of the %d experts", c.Groups, c.Experts)
	case c.GroupsPerToken < 1 || c.GroupsPerToken > c.Groups:
		return fmt.Errorf("expert: Config.GroupsPerToken is %d: set it to a number from 1 to the %d groups",
			c.GroupsPerToken, c.Groups)
	case c.PerToken > c.GroupsPerToken*(c.Experts/c.Groups):
		return fmt.Errorf("expert: Config.PerToken is %d, but %d groups have %d experts: set it to at most that",
			c.PerToken, c.GroupsPerToken, c.GroupsPerToken*(c.Experts/c.Groups))
	}
	return nil
}

// The names of the buffers with loads, after the layer's: see [Config.Params].
const (
	LoadName = ".router.load"
	KeptName = ".router.kept"
)

// The names of other parameters.
const (
	routerName = ".router.w"
	biasName   = ".router.bias"
	gateName   = ".experts.gate.w"
	upName     = ".experts.up.w"
	downName   = ".experts.down.w"
)

// Params returns the layer's parameters in float32, their names beginning with at and a dot, for tokens of a width C:
//
//	router.w        (C,E)
//	router.bias     (E)      a buffer, with Sigmoid
//	router.load     (E)      a buffer: each expert's load in the last step, of which 1 is the mean
//	router.kept     (E)      a buffer, with Capacity: the same without what was dropped
//	experts.gate.w  (E,C,H)  if gated
//	experts.up.w    (E,C,H)
//	experts.down.w  (E,H,C)
func (c Config) Params(at string, width int, gated bool) params.Tree {
	tree := params.Tree{}
	add := func(name string, dims ...int) { tree = append(tree, params.New(at+name, dtypes.Float32, dims...)) }
	add(routerName, width, c.Experts)
	for _, name := range c.buffers() {
		add(name, c.Experts)
	}
	if gated {
		add(gateName, c.Experts, width, c.Hidden)
	}
	add(upName, c.Experts, width, c.Hidden)
	add(downName, c.Experts, c.Hidden, width)
	return tree
}

// Buffers returns the names of the parameters that [Layer.Apply] updates, in place of an optimizer (train.Buffered).
func (c Config) Buffers(at string) []string {
	names := c.buffers()
	for i, name := range names {
		names[i] = at + name
	}
	return names
}

// Initial returns the value that a buffer of a name starts with, and whether the name is that of a buffer: of any
// layer, since it is known by its end. Loads start with the mean, 1, and biases with 0.
func (c Config) Initial(name string) (value float32, ok bool) {
	for _, end := range c.buffers() {
		if strings.HasSuffix(name, end) {
			if end != biasName {
				value = 1
			}
			return value, true
		}
	}
	return 0, false
}

func (c Config) buffers() (names []string) {
	if c.Router == Sigmoid {
		names = append(names, biasName)
	}
	names = append(names, LoadName)
	if c.Capacity > 0 {
		names = append(names, KeptName)
	}
	return names
}

// capacity is the most tokens that an expert takes of a sequence of a length.
func (c Config) capacity(length int) int {
	if c.Capacity == 0 {
		return length
	}
	return min(length, int(math.Ceil(c.Capacity*float64(c.PerToken*length)/float64(c.Experts))))
}

func (c Config) scale() float64 {
	if c.Scale == 0 {
		return 1
	}
	return c.Scale
}

func (c Config) groups() (all, ofToken int) { return max(1, c.Groups), max(1, c.GroupsPerToken) }

// check panics with an error unless a condition holds.
func check(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Errorf("expert: "+format, args...))
	}
}
