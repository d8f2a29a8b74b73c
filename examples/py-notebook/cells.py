# %% a variable, which later cells see
import sys
numbers = [n * n for n in range(5)]
numbers

# %% output as it comes
for n in numbers[:3]:
    print("square", n)
print("a warning", file=sys.stderr)

# %% a cell that fails does not end the others
1 / 0

# %%
sum(numbers)
