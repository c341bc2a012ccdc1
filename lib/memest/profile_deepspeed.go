package memest

import (
	"cmp"
	"errors"
)

// DeepSpeed computes model states as DeepSpeed's estimate_zero2_model_states_mem_needs and
// estimate_zero3_model_states_mem_needs do (deepspeed/runtime/zero, stage_1_and_2.py and stage3.py, 0.15.0), for mixed
// precision with Adam. DeepSpeed prints units of 2³⁰ bytes as GB. It rounds bytes down, this type up.
//
// Host memory is that of a node with all its devices, with the default additional_buffer_factor of 1.5.
type DeepSpeed struct {
	Stage        int   // 2 or 3
	Params       int64 // total_params
	LargestLayer int64 // largest_layer_params: the most parameters that one module has itself; for stage 3 only

	GPUsPerNode, Nodes int // default to 1

	OffloadOptimizer bool // cpu_offload: gradients and optimizer states are in host memory
	OffloadParams    bool // cpu_offload_params: parameters are as well; for stage 3 only
	ZeroInit         bool // zero_init: parameters are sharded while the model is built; for stage 3 only
}

// States lists the memory of a GPU and, with Item.Host set, of a node. It returns an error for an invalid field.
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
		field{"GPUsPerNode", int64(d.GPUsPerNode), 1, 1 << 20},
		field{"Nodes", int64(d.Nodes), 1, 1 << 20}); err != nil {
		return err
	}
	switch {
	case d.Stage == 3:
		if err := inRange("DeepSpeed", field{"LargestLayer", d.LargestLayer, 1, d.Params}); err != nil {
			return err
		}
	case d.OffloadParams:
		return errors.New("memest: DeepSpeed.OffloadParams is set with stage 2: choose stage 3")
	case d.ZeroInit:
		return errors.New("memest: DeepSpeed.ZeroInit is set with stage 2: choose stage 3")
	}
	if d.OffloadParams && !d.OffloadOptimizer {
		return errors.New("memest: DeepSpeed.OffloadParams is set without OffloadOptimizer: set both")
	}
	return nil
}

const (
	fp32States = "32-bit parameters, gradients, momentum and variance"
	building   = "32-bit parameters of each process, while the model is built"
)

func (d DeepSpeed) stage2() []Item {
	built := Item{Kind: Temporary, Name: building, Formula: "4*g*P*3/2", Host: true}
	if d.OffloadOptimizer {
		host := Item{Kind: Optimizer, Name: fp32States, Formula: "16*P*3/2", Host: true}
		// the larger of the two; DeepSpeed's code, unlike its documentation, uses the GPUs of all nodes
		if d.GPUsPerNode*d.Nodes > 4 {
			host, host.Formula = built, "4*N*P*3/2"
		}
		return []Item{{Kind: Parameters, Name: "16-bit parameters", Formula: "2*P"}, host}
	}
	return []Item{
		{Kind: Parameters, Name: "16-bit parameters", Formula: "2*P"},
		{Kind: Gradients, Name: "16-bit gradients", Formula: "2*P/N"}, // 2*P in the documentation and before 0.14.3
		{Kind: Optimizer, Name: fp32States, Formula: "16*P/N"},
		built,
	}
}

func (d DeepSpeed) stage3() []Item {
	items := []Item{{Kind: Temporary, Name: "largest layer's gathered parameters and gradients", Formula: "4*l"}}
	built := Item{Kind: Temporary, Name: building, Formula: "4*g*P*3/2", Host: true}
	if !d.OffloadOptimizer {
		if d.ZeroInit { // one layer at a time
			built.Formula = "4*g*l*3/2"
		}
		return append(items, Item{Kind: Parameters, Name: "16-bit parameters", Formula: "2*P/N"},
			Item{Kind: Optimizer, Name: fp32States, Formula: "16*P/N"}, built)
	}
	host, bytes := Item{Kind: Optimizer, Name: fp32States, Formula: "16*P/M*3/2", Host: true}, 16
	if d.OffloadParams {
		host.Name, host.Formula, bytes = "16-bit parameters, and "+fp32States, "18*P/M*3/2", 18
	} else {
		items = append(items, Item{Kind: Parameters, Name: "16-bit parameters", Formula: "2*P/N"})
	}
	if !d.ZeroInit && 4*d.GPUsPerNode*d.Nodes > bytes { // the larger of the two
		host = built
	}
	return append(items, host)
}
