package main

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// zeroSettings say what devices hold a shard of, and not all.
type zeroSettings struct {
	Zero     int  `json:"zero,omitempty"` // the stage; 0 shards nothing
	Prefetch int  `json:"prefetch,omitempty"`
	Shards   int  `json:"shards,omitempty"` // 0 is one for each device
	Offload  bool `json:"offload_optimizer,omitempty"`
}

func (z *zeroSettings) flags(f *pflag.FlagSet) {
	f.IntVar(&z.Zero, "zero", z.Zero, "ZeRO stage: 1 shards optimizer states between devices, 2 gradients too, 3 parameters too (FSDP); 0 nothing")
	f.IntVar(&z.Prefetch, "prefetch", z.Prefetch, "with --zero 3, blocks ahead of their use that parameters are gathered")
	f.IntVar(&z.Shards, "shards", z.Shards, "with --zero, neighbouring devices that share one copy of the state: hybrid sharding (default all)")
	f.BoolVar(&z.Offload, "offload-optimizer", z.Offload, "with --zero, optimizer states and master copy in host memory, and updates there (ZeRO-Offload)")
}

// given is a flag that was given and that only sharding knows, or "".
func (z *zeroSettings) given() string {
	switch {
	case z.Prefetch != 0:
		return "prefetch"
	case z.Shards != 0:
		return "shards"
	case z.Offload:
		return "offload-optimizer"
	}
	return ""
}

// validateZero is validate where devices hold shards.
func (p *parallel) validateZero() error {
	ways := []syncWay{syncSPMD, syncAuto, syncRanks}
	for _, f := range []struct {
		name  string
		given bool
	}{{"bucket-bytes", p.BucketBytes > 0}, {"every", p.Every > 1}, {"servers", p.Servers > 0}, {"compress-gradients", p.Compress != ""}} {
		if f.given {
			return fmt.Errorf("--%s and --zero=%d, which reduces the gradients of each block as they are: leave one of them out", f.name, p.Zero)
		}
	}
	switch {
	case !slices.Contains(ways, p.Sync):
		return fmt.Errorf("--sync=%s and --zero=%d: choose --sync, one of %q, or leave one of them out", p.Sync, p.Zero, ways)
	case p.Prefetch < 0:
		return fmt.Errorf("--prefetch=%d: want at least 0", p.Prefetch)
	case p.Prefetch > 0 && p.Zero < 3:
		return fmt.Errorf("--prefetch=%d and --zero=%d, where parameters are there already: leave it out, or choose --zero 3", p.Prefetch, p.Zero)
	case p.Shards < 0 || p.Shards > 0 && p.Data%p.Shards != 0:
		return fmt.Errorf("--shards=%d: want a number that divides --data %d, or 0 for all", p.Shards, p.Data)
	case p.Offload && p.Sync != syncRanks:
		return fmt.Errorf("--offload-optimizer and --sync=%s, which updates on the devices: choose --sync %s", p.Sync, syncRanks)
	case p.Sync == syncAuto && (p.Accumulate > 1 || p.Prefetch > 0 || p.Shards > 0):
		return fmt.Errorf("--sync=%s leaves it to the compiler what is sent when: leave out --accumulate, --prefetch and --shards, or choose --sync %s",
			p.Sync, syncSPMD)
	}
	return nil
}

func (p *parallel) zeroOptions() zero.Options {
	return zero.Options{Stage: p.Zero, Prefetch: p.Prefetch, Accumulate: p.Accumulate, Shards: p.Shards,
		Offload: offload.Host{Update: p.Offload}}
}

// traffic is what each device sends in a step, or nil where that is not known before.
func (p *parallel) traffic(recipe train.Recipe) (*traffic, error) {
	if p.Zero == 0 || p.Sync == syncAuto || p.composed() {
		return nil, nil
	}
	o := p.zeroOptions()
	plan, err := o.Plan(recipe, p.Data)
	if err != nil {
		return nil, inFlags(err)
	}
	sizes, err := o.Sizes(recipe, p.Data)
	if err != nil {
		return nil, inFlags(err)
	}
	t := &traffic{}
	for _, op := range plan.Ranks[0] {
		a, _ := plan.Axis(op.Axis)
		n := int64(a.Size)
		switch {
		case op.Kind == step.Gather:
			t.Gather += sizes.Whole[op.Unit] * (n - 1) / n
		case op.Kind == step.Reduce && op.Axis == train.Axis:
			t.Scatter += sizes.Sum[op.Unit] * (n - 1) / n
		case op.Kind == step.Reduce:
			t.Average += 2 * sizes.Reduced[op.Unit] * (n - 1) / n
		}
	}
	return t, nil
}

// traffic is the bytes that a device sends in a step where each message is sent as a ring's algorithm sends it: (N−1)/N of what is
// gathered or scattered, for N devices, and twice that of what is all-reduced. Sums within an update are not counted.
type traffic struct {
	Gather  int64 `json:"gather"`            // parameters
	Scatter int64 `json:"scatter"`           // gradients, to shards
	Average int64 `json:"average,omitempty"` // shards of gradients, between the copies of the state of hybrid sharding
}

// mesh has the devices of one program.
func (p *parallel) mesh(backend *xla.Backend) (*xla.Mesh, error) {
	return backend.Mesh(xla.Axis(train.Axis, p.Data))
}
