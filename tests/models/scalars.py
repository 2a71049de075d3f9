"""The scalar networks of the authors' repositories as written there: channels second, convolutions of size 1."""

import torch
from torch import nn
from torch.nn import functional as F


def edges(x, k):
    """[B, C, N] → [B, 2 C, N, k]."""
    distance = (x[:, :, :, None] - x[:, :, None]).square().sum(1)
    rows = distance.topk(k, largest=False).indices
    near = torch.stack([sample[:, index] for sample, index in zip(x, rows, strict=True)])
    own = x.unsqueeze(-1).expand_as(near)
    return torch.cat([near - own, own], 1)


def layer(conv, channels, out, bn):
    return nn.Sequential(conv(channels, out, kernel_size=1, bias=False), bn, nn.LeakyReLU(negative_slope=0.2))


class TransformNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn1, self.bn2, bn3 = nn.BatchNorm2d(64), nn.BatchNorm2d(128), nn.BatchNorm1d(1024)
        self.conv1, self.conv2 = layer(nn.Conv2d, 6, 64, self.bn1), layer(nn.Conv2d, 64, 128, self.bn2)
        self.conv3 = layer(nn.Conv1d, 128, 1024, bn3)
        self.linear1, self.bn3 = nn.Linear(1024, 512, bias=False), nn.BatchNorm1d(512)
        self.linear2, self.bn4 = nn.Linear(512, 256, bias=False), nn.BatchNorm1d(256)
        self.transform = nn.Linear(256, 9)

    def forward(self, x):
        x = self.conv3(self.conv2(self.conv1(x)).amax(-1)).amax(-1)
        x = F.leaky_relu(self.bn3(self.linear1(x)), negative_slope=0.2)
        x = F.leaky_relu(self.bn4(self.linear2(x)), negative_slope=0.2)
        return self.transform(x).view(-1, 3, 3)


class DGCNNCls(nn.Module):
    def __init__(self, outputs=40, k=20):
        super().__init__()
        self.k, widths = k, ((3, 64), (64, 64), (64, 128), (128, 256))
        for number, (channels, out) in enumerate(widths, start=1):
            setattr(self, f"bn{number}", nn.BatchNorm2d(out))
            setattr(self, f"conv{number}", layer(nn.Conv2d, 2 * channels, out, getattr(self, f"bn{number}")))
        self.bn5 = nn.BatchNorm1d(1024)
        self.conv5 = layer(nn.Conv1d, 512, 1024, self.bn5)
        self.linear1, self.bn6 = nn.Linear(2048, 512, bias=False), nn.BatchNorm1d(512)
        self.linear2, self.bn7 = nn.Linear(512, 256), nn.BatchNorm1d(256)
        self.linear3 = nn.Linear(256, outputs)

    def forward(self, x):
        levels = []
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(edges(x, self.k)).max(dim=-1)[0]
            levels.append(x)
        x = self.conv5(torch.cat(levels, 1))
        x = torch.cat([x.amax(-1), x.mean(-1)], 1)
        x = F.leaky_relu(self.bn6(self.linear1(x)), negative_slope=0.2)
        x = F.leaky_relu(self.bn7(self.linear2(x)), negative_slope=0.2)
        return self.linear3(x)


class DGCNNPartSeg(nn.Module):
    def __init__(self, outputs=50, k=40):
        super().__init__()
        self.k, self.transform_net = k, TransformNet()
        flat = {6: (192, 1024), 7: (16, 64), 8: (1280, 256), 9: (256, 256), 10: (256, 128)}
        for number, (channels, out) in flat.items():
            setattr(self, f"bn{number}", nn.BatchNorm1d(out))
            setattr(self, f"conv{number}", layer(nn.Conv1d, channels, out, getattr(self, f"bn{number}")))
        for number, channels in enumerate((6, 64, 128, 64, 128), start=1):
            setattr(self, f"bn{number}", nn.BatchNorm2d(64))
            setattr(self, f"conv{number}", layer(nn.Conv2d, channels, 64, getattr(self, f"bn{number}")))
        self.conv11 = nn.Conv1d(128, outputs, kernel_size=1, bias=False)

    def forward(self, x, l):
        t = self.transform_net(edges(x, self.k))
        x = torch.bmm(x.transpose(2, 1), t).transpose(2, 1)
        x1 = self.conv2(self.conv1(edges(x, self.k))).amax(-1)
        x2 = self.conv4(self.conv3(edges(x1, self.k))).amax(-1)
        x3 = self.conv5(edges(x2, self.k)).amax(-1)
        x = self.conv6(torch.cat((x1, x2, x3), 1)).amax(-1, keepdim=True)
        x = torch.cat((x, self.conv7(l.view(len(l), -1, 1))), 1).repeat(1, 1, x1.size(-1))
        x = self.conv10(self.conv9(self.conv8(torch.cat((x, x1, x2, x3), 1))))
        return self.conv11(x)


class STN(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        for number, (a, b) in enumerate(((k, 64), (64, 128), (128, 1024)), start=1):
            setattr(self, f"conv{number}", nn.Conv1d(a, b, 1))
        self.fc1, self.fc2, self.fc3 = nn.Linear(1024, 512), nn.Linear(512, 256), nn.Linear(256, k * k)
        for number, width in enumerate((64, 128, 1024, 512, 256), start=1):
            setattr(self, f"bn{number}", nn.BatchNorm1d(width))

    def forward(self, x):
        for number in (1, 2, 3):
            x = F.relu(getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x)))
        x = x.max(2)[0]
        x = F.relu(self.bn5(self.fc2(F.relu(self.bn4(self.fc1(x))))))
        return self.fc3(x).view(-1, self.k, self.k) + torch.eye(self.k, dtype=x.dtype)


def turned(x, t):
    return torch.bmm(x.transpose(2, 1), t).transpose(2, 1)


class PointNetEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stn, self.fstn = STN(3), STN(64)
        for number, (a, b) in enumerate(((3, 64), (64, 128), (128, 1024)), start=1):
            setattr(self, f"conv{number}", nn.Conv1d(a, b, 1))
            setattr(self, f"bn{number}", nn.BatchNorm1d(b))

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(turned(x, self.stn(x)))))
        x = F.relu(self.bn2(self.conv2(turned(x, self.fstn(x)))))
        return self.bn3(self.conv3(x)).max(2)[0]


class PointNetCls(nn.Module):
    def __init__(self, outputs=40):
        super().__init__()
        self.feat = PointNetEncoder()
        self.fc1, self.fc2, self.fc3 = nn.Linear(1024, 512), nn.Linear(512, 256), nn.Linear(256, outputs)
        self.bn1, self.bn2 = nn.BatchNorm1d(512), nn.BatchNorm1d(256)

    def forward(self, x):
        x = F.relu(self.bn2(self.fc2(F.relu(self.bn1(self.fc1(self.feat(x)))))))
        return F.log_softmax(self.fc3(x), dim=1)


class PointNetPartSeg(nn.Module):
    def __init__(self, outputs=50):
        super().__init__()
        self.stn, self.fstn = STN(3), STN(128)
        for number, (a, b) in enumerate(((3, 64), (64, 128), (128, 128), (128, 512), (512, 2048)), start=1):
            setattr(self, f"conv{number}", nn.Conv1d(a, b, 1))
            setattr(self, f"bn{number}", nn.BatchNorm1d(b))
        for number, (a, b) in enumerate(((4944, 256), (256, 256), (256, 128), (128, outputs)), start=1):
            setattr(self, f"convs{number}", nn.Conv1d(a, b, 1))
        self.bns1, self.bns2, self.bns3 = nn.BatchNorm1d(256), nn.BatchNorm1d(256), nn.BatchNorm1d(128)

    def forward(self, x, label):
        out1 = F.relu(self.bn1(self.conv1(turned(x, self.stn(x)))))
        out2 = F.relu(self.bn2(self.conv2(out1)))
        out3 = F.relu(self.bn3(self.conv3(out2)))
        out4 = F.relu(self.bn4(self.conv4(turned(out3, self.fstn(out3)))))
        out5 = self.bn5(self.conv5(out4))
        expand = torch.cat([out5.amax(2), label], 1).unsqueeze(-1).repeat(1, 1, x.size(-1))
        net = torch.cat([expand, out1, out2, out3, out4, out5], 1)
        for number in (1, 2, 3):
            net = F.relu(getattr(self, f"bns{number}")(getattr(self, f"convs{number}")(net)))
        return F.log_softmax(self.convs4(net).transpose(2, 1), dim=-1)


def random_state(network, seed=0):
    """Weights that keep the scale, norms that have seen data; tensors under two names stay the same."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict(keep_vars=True).items():
            if not tensor.is_floating_point():
                tensor.fill_(7)
                continue
            drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            if tensor.ndim > 1:
                tensor.copy_(drawn / tensor.shape[1] ** 0.5)
            else:
                tensor.copy_(drawn.abs() + 0.5 if name.endswith(("weight", "var")) else 0.3 * drawn)
    return network.state_dict()
