//go:build !resident

package xla

import (
	"fmt"
	"slices"
)

// Places of numbers in a plan.
const planCall, planGroups, planRanks, planDevices = 0, 11, 12, 13

// betweenPlanned is between for a kernel.
func betweenPlanned(plan []int64) []int64 {
	group, senders := plan[planDevices:][:plan[planRanks]], plan[planDevices+plan[planGroups]*plan[planRanks]:]
	for rank, sender := range senders {
		if sender >= 0 && sender != int64(rank) {
			return []int64{group[sender], group[rank]}
		}
	}
	return group
}

// kernelKinds are the opcodes of the operations that kernels compute, by the kernels' names.
var kernelKinds = func() map[string]string {
	kinds := map[string]string{columnSumsKernel.name: "reduce"}
	for _, k := range slices.Concat(matmuls[0][:], matmuls[1][:]) {
		kinds[k.name] = "dot"
	}
	for kind, k := range collectiveKernels {
		kinds[k.name] = kindNames[kind]
	}
	return kinds
}()

// met checks that each collective by a kernel is still there once at most: copies could not tell which of them a device
// has come to.
func (h *hlo) met() error {
	seen := map[int64]bool{}
	for _, c := range h.all {
		for _, i := range c.instructions {
			if len(i.plan) == 0 {
				continue
			}
			if call := i.plan[planCall]; seen[call] {
				return fmt.Errorf("XLA has copied %v %d, whose copies the devices could confuse: open the backend with "+
					"xla.NoKernels()", i.kind(), call)
			} else {
				seen[call] = true
			}
		}
	}
	return nil
}
