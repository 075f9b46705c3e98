"""Why a compact model works: budgets, winners, readouts, costs, and differences that are more than noise."""
