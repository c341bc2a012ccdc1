package xla

import "strings"

// Highest counts the matmuls of a compiled program for GPUs, and those of which the operands must keep all their bits.
func Highest(p *Program) (highest, all int, err error) {
	h, err := latest(&p.compiled, (*executable).optimized)
	if err != nil {
		return 0, 0, err
	}
	for _, c := range h.all {
		for _, i := range c.instructions {
			called := strings.HasPrefix(i.field("custom_call_target").String(), "__cublas$")
			if i.opcode != "dot" && !called {
				continue
			}
			all++
			given := i.message.message("precision_config").field("operand_precision").List()
			if called && strings.Contains(string(i.field("backend_config").Bytes()), `"HIGHEST"`) ||
				given.Len() == 2 && given.Get(0).Enum() == 2 && given.Get(1).Enum() == 2 {
				highest++
			}
		}
	}
	return highest, all, nil
}
