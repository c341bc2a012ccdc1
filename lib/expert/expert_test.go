package expert

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// TestValidate: published models are valid, and errors name what is wrong.
func TestValidate(t *testing.T) {
	for name, c := range map[string]Config{
		"Switch-Base-128": {Experts: 128, PerToken: 1, Hidden: 3072, Capacity: 1.25, Balance: 0.01},
		"Mixtral 8x7B":    {Experts: 8, PerToken: 2, Hidden: 14336, Router: Softmax, Normalize: true, Balance: 0.02},
		"DeepSeek-V3": {Experts: 256, PerToken: 8, Hidden: 2048, Router: Sigmoid, Normalize: true, Scale: 2.5, Groups: 8,
			GroupsPerToken: 4, Balance: 0.0001, BiasRate: 0.001},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for want, change := range map[string]func(c *Config){
		"Config.Experts is 0":             func(c *Config) { c.Experts = 0 },
		"Config.PerToken is -1":           func(c *Config) { c.PerToken = -1 },
		"Config.PerToken is 5 of 4":       func(c *Config) { c.PerToken = 5 },
		"Config.Hidden is 0":              func(c *Config) { c.Hidden = 0 },
		`Config.Router is "top"`:          func(c *Config) { c.Router = "top" },
		"Config.Scale is -1":              func(c *Config) { c.Scale = -1 },
		"Config.Capacity is NaN":          func(c *Config) { c.Capacity = math.NaN() },
		"Config.ZLoss is +Inf":            func(c *Config) { c.ZLoss = math.Inf(1) },
		"Config.BiasRate is 1, but":       func(c *Config) { c.BiasRate = 1 },
		"Config.Groups is 3":              func(c *Config) { c.Groups, c.GroupsPerToken = 3, 1 },
		"Config.Groups is 0":              func(c *Config) { c.GroupsPerToken = 1 },
		"Config.GroupsPerToken is 3":      func(c *Config) { c.Groups, c.GroupsPerToken = 2, 3 },
		"but 1 groups have 2 experts: se": func(c *Config) { c.Groups, c.GroupsPerToken, c.PerToken = 2, 1, 3 },
	} {
		c := Config{Experts: 4, PerToken: 2, Hidden: 1}
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestBuffers: they are parameters, in order, and no others have an initial value.
func TestBuffers(t *testing.T) {
	for _, c := range []Config{
		{Experts: 4, PerToken: 2, Hidden: 3},
		{Experts: 4, PerToken: 2, Hidden: 3, Capacity: 1},
		{Experts: 4, PerToken: 2, Hidden: 3, Router: Sigmoid},
		{Experts: 4, PerToken: 2, Hidden: 3, Router: Sigmoid, Capacity: 1},
	} {
		var initial []string
		for _, name := range c.Params("h0.moe", 5, true).Names() {
			value, ok := c.Initial(name)
			if ok {
				initial = append(initial, name)
			}
			if want := ok && !strings.HasSuffix(name, "bias"); want != (value == 1) {
				t.Errorf("%s begins with %g", name, value)
			}
		}
		if !slices.Equal(initial, c.Buffers("h0.moe")) {
			t.Errorf("%v have initial values, of buffers %v", initial, c.Buffers("h0.moe"))
		}
	}
}
