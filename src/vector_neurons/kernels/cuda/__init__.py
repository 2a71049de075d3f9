"""Triton kernels for CUDA. Experimental: they have never run on a GPU.

They are compiled, and tested in Triton's interpreter on a CPU (`tests/kernels/test_triton.py`). The modules of this
package import triton; `vector_neurons.kernels` imports them only where it is installed.
"""
