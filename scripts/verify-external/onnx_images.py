"""Images per second from a folder of JPEG files to classes, with decoding: Meganeura beside PyTorch, and how many classes agree.

    python scripts/verify-external/onnx_images.py PROGRAM FOLDER [--images 4096] [--devices cuda,blade] [--turns 2]

FOLDER gets images of 500 x 375 pixels and a ResNet-50 with random weights, unless they are there. PyTorch uses a DataLoader with a
process for each processor, torchvision's transforms, f16 and channels last. Needs torch, torchvision, onnx, numpy and a CUDA device.
"""

import argparse
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision import transforms

BATCH = 64


def write_images(folder, count):
    """Smooth colours with noise, which compress to about 80 kB."""
    y, x = np.mgrid[0:375, 0:500]

    def write(number):
        rng = np.random.default_rng(number)
        waves = [127 + 100 * np.sin(x / rng.uniform(5, 60) + y / rng.uniform(5, 60)) for _ in range(3)]
        pixels = np.stack(waves, -1) + rng.normal(0, 10, (375, 500, 3))
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{number:05}.jpg", quality=90)

    folder.mkdir(parents=True, exist_ok=True)
    missing = [number for number in range(count) if not (folder / f"{number:05}.jpg").exists()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, missing))


class Images(torch.utils.data.Dataset):
    def __init__(self, files):
        self.files = files
        self.transform = transforms.Compose([
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.transform(Image.open(self.files[index]).convert("RGB"))


def of_pytorch(model, files):
    """The class of each file, and the seconds."""
    loader = torch.utils.data.DataLoader(
        Images(files), batch_size=BATCH, num_workers=os.cpu_count(), pin_memory=True, prefetch_factor=4
    )
    move = lambda batch: batch.cuda(non_blocking=True).half().to(memory_format=torch.channels_last)
    with torch.no_grad():
        model(move(torch.zeros(BATCH, 3, 224, 224)))
        torch.cuda.synchronize()
        begin = time.time()
        classes = torch.cat([model(move(batch)).argmax(1) for batch in loader]).cpu().numpy()
    return classes, time.time() - begin


def of_meganeura(program, onnx, folder, device):
    """The class of each file, and the program's own report, which does not include its start."""
    arguments = ["run", onnx, "--images", folder, "--batch", str(BATCH), "--device", device, "--json", "--precision", "mixed"]
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True)
    classes = [json.loads(line)["classes"][0]["class"] for line in done.stdout.splitlines()]
    return np.array(classes), done.stderr.strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--devices", default="cuda,blade")
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    photos, onnx = args.folder / "photos", args.folder / "resnet50.onnx"
    write_images(photos, args.images)
    torch.manual_seed(0)
    model = torchvision.models.resnet50().eval()
    if not onnx.exists():
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        example = torch.zeros(2, 3, 224, 224)
        names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
        torch.onnx.export(model, (example,), onnx, dynamo=False, **names)
    model = model.cuda().half().to(memory_format=torch.channels_last)
    files = sorted(photos.iterdir())
    for _ in range(args.turns):
        expected, seconds = of_pytorch(model, files)
        print(f"PyTorch: {len(files) / seconds:.0f} images/s", flush=True)
        for device in args.devices.split(","):
            found, report = of_meganeura(args.program, onnx, photos, device)
            print(f"{report}; {100 * (found == expected).mean():.2f} % agree", flush=True)


if __name__ == "__main__":
    main()
