package main

import "github.com/spf13/cobra"

func packCommand() *cobra.Command { return &cobra.Command{Use: "pack"} }
