package step

import "fmt"

// Text is an operation as PyTorch writes it, as far as PyTorch has it: 2F0, 2SEND_F0, 2UNSHARD.
func (p *Plan) Text(op Op) string { return fmt.Sprint(op) }

func (p *Plan) describe(v Value) string { return fmt.Sprint(v) }
