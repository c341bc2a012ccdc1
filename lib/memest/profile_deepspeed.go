package memest

import (
	"cmp"
	"errors"
)

// DeepSpeed counts model states as its functions estimate_zero2_model_states_mem_needs and
// estimate_zero3_model_states_mem_needs do (deepspeed/runtime/zero, stage_1_and_2.py and stage3.py, 0.15.0), for mixed
// precision with Adam. What they print as GB is 2³⁰ bytes. They cut fractions of a byte off, which here count as one.
//
// Host memory is that of a node, which its devices share, and has their default additional_buffer_factor of 1.5.
type DeepSpeed struct {
	Stage        int   // 2 or 3
	Params       int64 // total_params
	LargestLayer int64 // largest_layer_params: parameters of the module that has most by itself; for stage 3 alone

	GPUsPerNode, Nodes int // 0 is 1

	OffloadOptimizer bool // cpu_offload: gradients and optimizer states are in host memory
	OffloadParams    bool // cpu_offload_params: so are parameters, in stage 3
	ZeroInit         bool // zero_init: parameters are cut as they are made, in stage 3

	// Documented counts stage 2 without offload by the formula of DeepSpeed's documentation ("Memory Requirements") and
	// of versions before 0.14.3, 4P + 16P/N, where all gradients are on each device. Since then it is 2P + 18P/N.
	Documented bool
}

// States lists a GPU's and a node's memory. An error names the field that is not valid.
func (d DeepSpeed) States() ([]Item, error) {
	d.GPUsPerNode, d.Nodes = cmp.Or(d.GPUsPerNode, 1), cmp.Or(d.Nodes, 1)
	if err := d.validate(); err != nil {
		return nil, err
	}
	items, source := d.stage2(), "DeepSpeed, estimate_zero2_model_states_mem_needs"
	if d.Stage == 3 {
		items, source = d.stage3(), "DeepSpeed, estimate_zero3_model_states_mem_needs"
	}
	gpus, nodes := int64(d.GPUsPerNode), int64(d.Nodes)
	v := vars{"P": d.Params, "l": d.LargestLayer, "g": gpus, "M": nodes, "N": gpus * nodes}
	return v.published(source, items...)
}

func (d DeepSpeed) validate() error {
	if err := inRange("DeepSpeed", field{"Stage", int64(d.Stage), 2, 3}, field{"Params", d.Params, 1, mostParameters},
		field{"GPUsPerNode", int64(d.GPUsPerNode), 1, 1 << 20}, field{"Nodes", int64(d.Nodes), 1, 1 << 20}); err != nil {
		return err
	}
	switch {
	case d.Stage == 3:
		if err := inRange("DeepSpeed", field{"LargestLayer", d.LargestLayer, 1, d.Params}); err != nil {
			return err
		}
	case d.OffloadParams:
		return errors.New("memest: DeepSpeed.OffloadParams is set in stage 2, which has parameters on each " +
			"device: choose stage 3")
	case d.ZeroInit:
		return errors.New("memest: DeepSpeed.ZeroInit is set in stage 2, which has parameters on each device: choose stage 3")
	}
	if d.OffloadParams && !d.OffloadOptimizer {
		return errors.New("memest: DeepSpeed.OffloadParams is set without OffloadOptimizer: set both")
	}
	return nil
}

const (
	heldStates = "32-bit parameters, gradients, momentum and variance"
	whileMade  = "32-bit parameters of each process, while the model is made"
)

func (d DeepSpeed) stage2() []Item {
	made := Item{Kind: Temporary, Name: whileMade, Formula: "4*g*P*3/2", Host: true}
	if d.OffloadOptimizer {
		host := Item{Kind: Optimizer, Name: heldStates, Formula: "16*P*3/2", Host: true}
		// the larger of the two; here, unlike in its documentation, with the GPUs of all nodes
		if d.GPUsPerNode*d.Nodes > 4 {
			host, host.Formula = made, "4*N*P*3/2"
		}
		return []Item{{Kind: Parameters, Name: "16-bit parameters", Formula: "2*P"}, host}
	}
	gradients := "2*P/N"
	if d.Documented {
		gradients = "2*P"
	}
	return []Item{
		{Kind: Parameters, Name: "16-bit parameters", Formula: "2*P"},
		{Kind: Gradients, Name: "16-bit gradients", Formula: gradients},
		{Kind: Optimizer, Name: heldStates, Formula: "16*P/N"},
		made,
	}
}

func (d DeepSpeed) stage3() []Item {
	items := []Item{{Kind: Temporary, Name: "largest layer's gathered parameters and gradients", Formula: "4*l"}}
	made := Item{Kind: Temporary, Name: whileMade, Formula: "4*g*P*3/2", Host: true}
	if !d.OffloadOptimizer {
		if d.ZeroInit { // a layer at a time
			made.Formula = "4*g*l*3/2"
		}
		return append(items,
			Item{Kind: Parameters, Name: "16-bit parameters", Formula: "2*P/N"},
			Item{Kind: Optimizer, Name: heldStates, Formula: "16*P/N"},
			made)
	}
	host, bytes := Item{Kind: Optimizer, Name: heldStates, Formula: "16*P/M*3/2", Host: true}, 16
	if d.OffloadParams {
		host.Name, host.Formula, bytes = "16-bit parameters, and "+heldStates, "18*P/M*3/2", 18
	} else {
		items = append(items, Item{Kind: Parameters, Name: "16-bit parameters", Formula: "2*P/N"})
	}
	if !d.ZeroInit && 4*d.GPUsPerNode*d.Nodes > bytes { // the larger of the two
		host = made
	}
	return append(items, host)
}
