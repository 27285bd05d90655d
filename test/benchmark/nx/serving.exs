# The baseline of P15: an identity serving of Nx, with callers that call again when they have their
# reply. Each line of the input is a number of seconds; each line of the output the rows a second.
#
# Set up once, which needs Elixir 1.14 or newer and hex.pm:
#
#     mix local.hex --force && elixir test/benchmark/nx/serving.exs
#
# An Nx that ERL_LIBS names is used as it is.
unless Code.ensure_loaded?(Nx) do
  # A benchmark cannot answer the question whether to install Hex.
  unless Code.ensure_loaded?(Hex), do: Mix.raise("Nx is not set up")
  Mix.install([{:nx, "0.7.2"}])
end

if System.argv() == [], do: System.halt()

{:ok, _} = Application.ensure_all_started(:nx)

[callers, size, batch_size, batch_timeout] = Enum.map(System.argv(), &String.to_integer/1)
serving = Nx.Serving.new(fn options -> Nx.Defn.jit(fn rows -> rows end, options) end)

{:ok, _} =
  Nx.Serving.start_link(
    serving: serving,
    name: Identity,
    batch_size: batch_size,
    batch_timeout: batch_timeout
  )

row = Nx.broadcast(Nx.tensor(1.5, type: :f32), {1, size})

call = fn ->
  output = Nx.Serving.batched_run(Identity, Nx.Batch.concatenate([row]))
  {1, ^size} = Nx.shape(output)
end

measure = fn seconds ->
  start = System.monotonic_time(:microsecond)
  finish = start + round(seconds * 1_000_000)

  rows =
    1..callers
    |> Enum.map(fn _ ->
      Task.async(fn ->
        Stream.repeatedly(call)
        |> Enum.reduce_while(0, fn _, done ->
          if System.monotonic_time(:microsecond) < finish,
            do: {:cont, done + 1},
            else: {:halt, done + 1}
        end)
      end)
    end)
    |> Task.await_many(:infinity)
    |> Enum.sum()

  rows * 1_000_000 / (System.monotonic_time(:microsecond) - start)
end

IO.puts("ready")

for line <- IO.stream(:stdio, :line) do
  {seconds, _} = Float.parse(line)
  IO.puts(measure.(seconds))
end
