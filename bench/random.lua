-- Requests for files at random, below a folder: FILES of them in folders 00 to ff, from a SEED that repeats a run.
-- The texts are made once each, so that the generator has processor time left.
local count = tonumber(os.getenv("FILES"))
local folder = os.getenv("FOLDER")
local made = {}

function init()
   math.randomseed(tonumber(os.getenv("SEED")))
end

function request()
   local index = math.random(0, count - 1)
   local text = made[index]
   if not text then
      text = wrk.format("GET", string.format("%s/%02x/%d", folder, index % 256, math.floor(index / 256)))
      made[index] = text
   end
   return text
end
