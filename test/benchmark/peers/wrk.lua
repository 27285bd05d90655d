-- Posts the lines of the file args[1] in turn, and prints the figures as JSON.
local posts, last = {}, 0

function init(args)
  local headers = { ['Content-Type'] = 'application/json' }
  for line in io.lines(args[1]) do
    table.insert(posts, wrk.format('POST', nil, headers, line))
  end
end

function request()
  last = last % #posts + 1
  return posts[last]
end

-- wrk takes the mean time of a request for a pace that was intended, and adds to each latency above
-- twice that pace samples of requests that it thinks were not made (stats_correct). Nobody intended
-- a pace here, so they are taken out again: from the longest latency down, because the samples of
-- a latency are all shorter than it is. Then as many must be left as there were answers.
local function without_correction(latency, answers, pace)
  local ffi = require('ffi')
  ffi.cdef('typedef struct { uint64_t count, limit, min, max, data[]; } histogram;')
  local histogram = ffi.cast('histogram **', latency)[0]
  local left = tonumber(histogram.count)
  for value = tonumber(histogram.max), 2 * pace, -1 do
    local count = histogram.data[value]
    if left > answers and count > 0 then
      for added = value - pace, pace + 1, -pace do
        histogram.data[added] = histogram.data[added] - count
        left = left - tonumber(count)
      end
    end
  end
  histogram.count = left
  return left == answers
end

function done(summary, latency)
  local errors = summary.errors
  local perConnection = math.floor(summary.requests / tonumber(os.getenv('CONNECTIONS')))
  local pace = math.floor(summary.duration / perConnection)
  local honest = without_correction(latency, summary.requests - errors.timeout, pace)
  io.write(string.format(
    'JSON {"answers":%d,"seconds":%f,"failed":%d,"p50":%f,"p99":%f,"honest":%s}\n',
    summary.requests - errors.status, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, tostring(honest)))
end
